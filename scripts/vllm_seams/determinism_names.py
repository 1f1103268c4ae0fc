"""The names of vLLM that deterministic requests alone depend on. Part of `table`."""

from scripts.vllm_seams.seam import Use
from scripts.vllm_seams.seam import describe_use as _use

_OURS = "inside/determinism"
_PASSES = f"{_OURS}/passes.py"
_WINDOWS, _EDGE = f"{_OURS}/windows.py", "inside/scheduler.py"
_RUNNER = f"{_OURS}/runner.py"

_VLLM_SCHEDULER = "v1.core.sched.scheduler:Scheduler"
_VLLM_RUNNER = "v1.worker.gpu_model_runner:GPUModelRunner"
_REPLACED, _OVERRIDDEN, _CALLED = Use.REPLACED, Use.OVERRIDDEN, Use.CALLED
_ACCESSED, _NAMED, _WORKINGS = Use.ACCESSED, Use.NAMED, Use.WORKINGS

DETERMINISM = (
    _use(_VLLM_SCHEDULER, "_free_request _get_local_prefix_cache_hit", _OVERRIDDEN,
         f"{_EDGE} {_WINDOWS}",
         "Prefixes are shared in whole windows; a request's candidates end with it."),
    _use(_VLLM_SCHEDULER, "max_num_scheduled_tokens policy", _ACCESSED, _PASSES,
         "A pass is vLLM's own step over some of the requests."),
    _use(_VLLM_SCHEDULER, "scheduler_config adaptive_long_prefill_threshold", _ACCESSED, _PASSES,
         "A pass of several paths takes so many tokens of each."),
    _use("config.scheduler:SchedulerConfig", "long_prefill_token_threshold", _ACCESSED, _PASSES,
         "A pass of several paths takes so many tokens of each."),
    _use(_VLLM_SCHEDULER, "hash_block_size block_size", _ACCESSED, _WINDOWS,
         "The hashes of blocks with candidates are forgotten."),
    _use(_VLLM_SCHEDULER, "make_spec_decoding_stats", _WORKINGS, _PASSES,
         "Does nothing without statistics, which our engines do not log."),
    _use("v1.core.sched.request_queue", "create_request_queue", _CALLED, _PASSES,
         "A pass sees some of the waiting requests."),
    _use("v1.core.sched.output:SchedulerOutput",
         "total_num_scheduled_tokens scheduled_spec_decode_tokens", _ACCESSED, _PASSES,
         "The guesses of a window travel as the tokens of speculative decoding do."),
    _use("v1.core.kv_cache_manager:KVCacheManager", "cache_blocks truncate_computed_blocks",
         _CALLED, _WINDOWS, "Blocks are found by others once their window is verified."),
    _use("v1.request:Request",
         "_output_token_ids _all_token_ids block_hashes spec_token_ids", _ACCESSED, _WINDOWS,
         "Candidates are taken back, and become the guesses of a pass."),
    _use("v1.request:Request", "cache_salt update_block_hashes append_output_token_ids", _CALLED,
         f"{_PASSES} {_WINDOWS}", "Deterministic requests find each other's blocks alone."),
    _use("v1.outputs:ModelRunnerOutput", "sampled_token_ids", _ACCESSED, _PASSES,
         "Counts the tokens of a pass."),
    _use("v1.worker", "gpu_model_runner", _NAMED, _RUNNER, "Has the replaced methods."),
    _use("v1.worker.gpu_model_runner", "GPUModelRunner", _NAMED, _RUNNER,
         "Has the replaced methods."),
    _use(_VLLM_RUNNER,
         "_prepare_inputs _determine_batch_execution_and_padding _build_attention_metadata"
         " _sample _pool", _REPLACED, _RUNNER,
         "A pass has a fixed number of rows, logits for all of them, and one split of attention."),
    _use(_VLLM_RUNNER, "sample_tokens", _REPLACED, f"{_OURS}/runner.py",
         "The tokens of a pass go to the host at once."),
    _use(_VLLM_RUNNER, "execute_model_state use_async_scheduling", _ACCESSED,
         f"{_OURS}/runner.py", "The step whose tokens are drawn, and how they are told."),
    _use("v1.worker.gpu_input_batch:InputBatch", "remove_request", _WORKINGS,
         "inside/kv/quota.py",
         "Forgets the token in flight of a request that leaves the batch: it comes back with all"
         " of its tokens."),
    _use(_VLLM_RUNNER, "input_batch requests num_scheduled_tokens", _ACCESSED, _RUNNER,
         "Finds the rows of a pass that draw tokens."),
    _use(_VLLM_RUNNER, "optimistic_seq_lens_cpu", _ACCESSED, _RUNNER,
         "Tells where the rows of a path's chunk end."),
    _use("v1.worker.gpu_input_batch:InputBatch", "prev_sampled_token_ids", _ACCESSED, _RUNNER,
         "A pass has no input that the step before drew."),
    _use("v1.worker.gpu_input_batch:InputBatch", "get_pooling_states num_reqs", _ACCESSED, _RUNNER,
         "Holds what was computed of a path."),
    _use("v1.pool.metadata:PoolingStates", "clean", _CALLED, _RUNNER,
         "A path that lost its blocks is computed anew."),
    _use("model_executor.layers.pooler.tokwise", "heads", _NAMED, _RUNNER,
         "Has the replaced method."),
    _use("model_executor.layers.pooler.tokwise.heads", "TokenClassifierPoolerHead", _NAMED,
         _RUNNER, "Has the replaced method."),
    _use("model_executor.layers.pooler.tokwise.heads:TokenClassifierPoolerHead", "forward_chunk",
         _REPLACED, _RUNNER, "The head of a path that is scored has one shape."),
    _use(_VLLM_RUNNER, "execute_model _update_states _bookkeeping_sync _get_slot_mappings",
         _WORKINGS, _RUNNER,
         "A request whose outputs became fewer is cut back, guesses are its inputs, and rows beyond"
         " the scheduled tokens write no KV."),
    _use("v1.worker.gpu_input_batch:InputBatch", "req_ids sampling_metadata", _ACCESSED, _RUNNER,
         "The order of the requests in a pass, and what the sampler is asked for."),
    _use("v1.worker.gpu_input_batch:InputBatch", "update_req_spec_token_ids", _WORKINGS, _RUNNER,
         "Puts the guesses behind the known tokens."),
    _use("v1.sample.sampler:Sampler", "compute_logprobs greedy_sample", _CALLED, _RUNNER,
         "A pass draws as a shared step does."),
    _use("v1.sample.rejection_sampler:RejectionSampler", "parse_output", _WORKINGS, _RUNNER,
         "Reads several tokens of a request, up to the first -1."),
    _use("v1.outputs", "LogprobsTensors SamplerOutput", _NAMED, _RUNNER,
         "What a sampler returns."),
    _use("v1.outputs:SamplerOutput", "sampled_token_ids logprobs_tensors", _ACCESSED, _RUNNER,
         "What a sampler returns."),
    _use("envs", "VLLM_CPU_ATTN_SPLIT_KV", _ACCESSED, _RUNNER,
         "The kernel of a CPU splits a long KV by what else is in the batch."),
    _use("v1.attention.backends.cpu_attn:CPUAttentionMetadataBuilder", "build", _WORKINGS,
         _RUNNER, "Reads whether to split at each step."),
    _use("v1.attention.backends.flash_attn:FlashAttentionMetadataBuilder", "build", _WORKINGS,
         _RUNNER, "Reads whether to split at each step."),
    _use("sampling_params:SamplingParams",
         "min_tokens logit_bias bad_words allowed_token_ids prompt_logprobs"
         " prompt_logprob_token_ids logprob_token_ids thinking_token_budget",
         _ACCESSED, "serving/tagged_client.py", "What can't be verified is refused."),
)  # fmt: skip
