"""Single requests of known length on a simulated card: what the order of the waiting queue brings.

    prompts.py       prompts and their lengths: drawn from a prior, or of the step trace
    predictions.py   what a predictor with realistic errors says of each prompt
    event_driven.py  serves one load from event to event: thousands of requests in a second
    rivals.py        the orders that are compared, by the product's own policies

Ref: arXiv 2604.00499 §6.
"""
