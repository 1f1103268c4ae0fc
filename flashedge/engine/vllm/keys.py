"""What our front end and our code inside vLLM call things. Imports nothing: both sides can."""

ARGS_KEY = "flashedge"  # ours in SamplingParams.extra_args and in VllmConfig.additional_config
BOUNDARY = "boundary"  # stop_reason at a step's end
DRAWN = "flashedge_drawn"  # of an output: tokens of its request that were drawn ahead
