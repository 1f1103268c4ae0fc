"""Single requests of known length on a simulated card: what the order of the waiting queue brings.

    prior.py        the distributions of lengths that prompts have, as parameters
    prompts.py      prompts drawn from a prior, or of the step trace; dispersion.py measures them
    predictions.py  what a predictor with realistic errors says of each prompt
    case.py         one load: arrivals, prompts and lengths; the engine that serves it
    orders.py       orders of the waiting queue, by the product's own policies
    stepwise.py     serves a load step by step, with the simulated engine's scheduler
    event_driven.py the same, from event to event, so that thousands of requests take a second

Ref: arXiv 2604.00499 §6.
"""
