"""The names of vLLM that its second model runner adds to what FlashEdge depends on. Part of
`table`."""

from scripts.vllm_seams.seam import Use
from scripts.vllm_seams.seam import describe_use as _use

_CHOICE, _EDGE = "inside/runner_kind.py", "inside/scheduler.py"
_NOISE, _STEP_MEMORY = "inside/noise.py", "inside/step_memory.py"
_GPU = "v1.worker.gpu"
_PROCESSORS = f"{_GPU}.sample.logits_processor"
_RUNNER = f"{_GPU}.model_runner:GPUModelRunner"
_DRAFTS, _SPECULATOR = "inside/card_drafts.py", "inside/table_speculator.py"
_TENSOR = "inside/kv/tensor.py"
_SUBCLASSED, _OVERRIDDEN, _REPLACED = Use.SUBCLASSED, Use.OVERRIDDEN, Use.REPLACED
_CALLED, _ACCESSED, _NAMED, _WORKINGS = Use.CALLED, Use.ACCESSED, Use.NAMED, Use.WORKINGS

SECOND_RUNNER = (
    _use("config.vllm:VllmConfig", "use_v2_model_runner", _REPLACED,
         f"inside/patches.py {_CHOICE}",
         "The generator may have the second model runner, and the verifier has the first."),
    _use("v1.core.sched.scheduler:Scheduler", "use_v2_model_runner reset_preempted_req_ids",
         _ACCESSED, _EDGE,
         "The second runner keeps a request's slot until it hears that the request has left."),
    _use(_GPU, "model_runner", _NAMED, _CHOICE, "Defines the runner's class."),
    _use(f"{_GPU}.attn_utils", "allocate_kv_cache", _REPLACED, _TENSOR,
         "Two engines share one device, so KV blocks get memory only while they are in use."),
    _use(_RUNNER, "finish_requests update_requests", _WORKINGS, _EDGE,
         "A request that comes back is added anew, and what is computed of it is counted there."),
    _use(_RUNNER, "_dummy_run model_memory_usage input_buffers", _ACCESSED, _STEP_MEMORY,
         "The largest step is measured."),
    _use(_PROCESSORS, "LogitsProcessor", _SUBCLASSED, _NOISE,
         "Tokens are drawn by noise that depends on seed and position alone."),
    _use(f"{_PROCESSORS}:LogitsProcessor", "__init__ add_request apply", _OVERRIDDEN, _NOISE,
         "Tokens are drawn by noise that depends on seed and position alone."),
    _use(f"{_PROCESSORS}:LogitsContext", "idx_mapping_np expanded_idx_mapping pos", _ACCESSED,
         _NOISE, "Tells the slot of each row, and the position of the token before its own."),
    _use(f"{_PROCESSORS}:LogitsProcRequestState", "device max_num_reqs", _ACCESSED, _NOISE,
         "Where tokens are drawn, and of how many requests."),
    _use(f"{_GPU}.sample.sampler:Sampler", "add_request apply_staged_writes", _CALLED,
         _STEP_MEMORY, "Fills the slots of the largest step."),
    _use(f"{_GPU}.sample.sampler:Sampler", "__call__ apply_sampling_params", _WORKINGS, _NOISE,
         "Processors get a copy of the logits. Log-probabilities are those of the original."),
    _use(f"{_GPU}.sample.gumbel", "gumbel_sample", _WORKINGS, _NOISE,
         "Takes the argmax at temperature 0."),
    _use(f"{_GPU}.spec_decode.rejection_sampler:RejectionSampler", "__call__ _verify", _WORKINGS,
         _NOISE, "Processors get the rows of drafted tokens, too."),
    _use(f"{_GPU}.spec_decode.rejection_sampler_utils", "_rejection_kernel _resample_kernel",
         _WORKINGS, _NOISE,
         "At temperature 0 a drafted token is kept if it is the argmax of the row before it."),
    _use(f"{_GPU}.input_batch", "InputBatch", _NAMED, _STEP_MEMORY,
         "What the sampler gets in the largest step."),
    _use(f"{_GPU}.input_batch:InputBatch", "make_dummy", _CALLED, _STEP_MEMORY,
         "What the sampler gets in the largest step."),
    _use(f"{_GPU}.model_runner", "init_speculator", _REPLACED, f"inside/patches.py {_SPECULATOR}",
         "Tokens are drafted from the text of all paths of a program, and by the noise."),
    _use(_RUNNER, "add_requests", _REPLACED, f"inside/patches.py {_SPECULATOR}",
         "A request that comes back is added anew. The runner learns from which program's text it"
         " is drafted."),
    _use(_RUNNER, "sample_tokens", _WORKINGS, _SPECULATOR,
         "Drafts are proposed once the drawn tokens are in the text, and those beyond the asked"
         " number are not read."),
    _use(_RUNNER, "speculator", _ACCESSED, _SPECULATOR, "Learns of new requests."),
    _use(f"{_GPU}.input_batch", "combine_sampled_and_draft_tokens post_update", _WORKINGS,
         _SPECULATOR, "The runner alone knows the drafts and how many of them were drawn."),
    _use(f"{_GPU}.spec_decode.speculator", "BaseSpeculator", _SUBCLASSED, _SPECULATOR,
         "Drafts tokens in the place of vLLM's speculators."),
    _use(f"{_GPU}.spec_decode.speculator:BaseSpeculator", "init_cudagraph_manager capture propose",
         _OVERRIDDEN, _SPECULATOR, "Drafts tokens in the place of vLLM's speculators."),
    _use(f"{_GPU}.states:RequestState",
         "all_token_ids total_len max_num_reqs req_id_to_index", _ACCESSED, _SPECULATOR,
         "The texts of the requests on the device, and their slots."),
    _use("config.vllm:VllmConfig", "num_speculative_tokens", _ACCESSED,
         f"{_SPECULATOR} {_TENSOR}", "The most drafted tokens of a sequence in a step."),
    _use("config.vllm:VllmConfig", "num_lookahead_tokens", _ACCESSED, _TENSOR,
         "The room that the warm-up leaves for drafts."),
    _use("v1.worker.gpu.warmup", "_warmup_kernels", _WORKINGS, _TENSOR,
         "It writes blocks for all sequences at once, which need memory at the start."),
    _use("v1.core.sched.output:SchedulerOutput",
         "num_spec_tokens_to_schedule scheduled_new_reqs", _ACCESSED,
         f"{_DRAFTS} {_SPECULATOR}", "How many tokens are drafted, and of which requests."),
    _use("v1.core.sched.scheduler:Scheduler", "num_spec_tokens", _ACCESSED,
         f"{_DRAFTS} {_EDGE} inside/token_drafts.py", "Whether the model runner drafts tokens."),
    _use("v1.engine.input_processor:InputProcessor", "speculative_config", _ACCESSED,
         "process/live_process.py",
         "vLLM refuses parameters where tokens are drafted, which ours are not for."),
)  # fmt: skip
