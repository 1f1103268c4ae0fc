"""What our front end and our code inside vLLM call things. Imports nothing: both sides can."""

ARGS_KEY = "flashedge"  # ours in SamplingParams.extra_args and in VllmConfig.additional_config
BOUNDARY = "boundary"  # stop_reason at a step's end
DRAWN = "flashedge_drawn"  # of an output: tokens of its request that were drawn ahead

KV_KEY = "kv"  # of ours in VllmConfig.additional_config: how the KV tensor lies in memory
KV_FIXED = "fixed"  # true: nothing of it ever goes back
KV_START = "start"  # share of the blocks that have memory at the start, from the first on
KV_GUARDED = "guarded"  # bytes of a granule: on CPU, what has no memory can't be touched
