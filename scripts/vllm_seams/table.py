"""Every name of vLLM that FlashEdge depends on: what for, and which of our files does.

A row holds the names of one vLLM module or class that are used alike. What the names looked like in
the vLLM that FlashEdge was checked with stands in `record.json`. docs/upgrade-vllm.md shows how to
go to another vLLM with both.
"""

from scripts.vllm_seams.determinism_names import DETERMINISM
from scripts.vllm_seams.protocol_names import PROTOCOLS
from scripts.vllm_seams.seam import Use
from scripts.vllm_seams.seam import describe_use as _use
from scripts.vllm_seams.second_runner_names import SECOND_RUNNER

_SUBCLASSED, _OVERRIDDEN, _REPLACED = Use.SUBCLASSED, Use.OVERRIDDEN, Use.REPLACED
_CALLED, _ACCESSED, _EXACT = Use.CALLED, Use.ACCESSED, Use.EXACT
_NAMED, _WORKINGS = Use.NAMED, Use.WORKINGS

_QUOTA, _SPECULATION = "inside/kv/quota.py", "inside/speculation.py"
_EDGE = "inside/scheduler.py"
_TENSOR, _WORKER = "inside/kv/tensor.py", "inside/kv/worker.py"
_NOISE, _SKYWORK = "inside/noise.py", "inside/skywork_model.py"
_STEP_MEMORY = "inside/step_memory.py"
_OURS = f"{_QUOTA} {_SPECULATION}"
_PASSES, _WINDOWS = "inside/determinism/passes.py", "inside/determinism/windows.py"

_JOINED = "inside/outputs.py"

_SCHEDULER = "v1.core.sched.scheduler:Scheduler"
_ASYNC = "v1.core.sched.async_scheduler"
_MANAGER = "v1.core.kv_cache_manager:KVCacheManager"
_POOL = "v1.core.block_pool:BlockPool"

SCHEDULER = (
    _use(_ASYNC, "AsyncScheduler", _SUBCLASSED, _EDGE,
         "Step boundaries, drafts and the KV quota act inside the engine's loop."),
    _use(f"{_ASYNC}:AsyncScheduler", "__init__", _OVERRIDDEN, _EDGE,
         "Our scheduler adds its features."),
    _use(f"{_ASYNC}:AsyncScheduler", "_update_request_with_output", _OVERRIDDEN, _EDGE,
         "A request ends at the token that completes its step. Candidates are kept back."),
    _use(f"{_ASYNC}:AsyncScheduler", "_update_after_schedule", _OVERRIDDEN, _EDGE,
         "Counts a placeholder for each token in flight, drafted ones too. A pass gets its guesses"
         " before."),
    _use(_SCHEDULER, "_update_request_with_output", _CALLED, _EDGE,
         "Appends the tokens that a pass has drawn."),
    _use(_SCHEDULER, "__init__ _update_after_schedule", _OVERRIDDEN, _EDGE,
         "The asynchronous scheduler's call them."),
    _use("v1.core.sched.scheduler", "Scheduler", _SUBCLASSED, _EDGE,
         "The asynchronous scheduler derives from it, and so does ours."),
    _use(_SCHEDULER, "prev_step_scheduled_req_ids", _ACCESSED, _EDGE,
         "The model runner gets all tokens of a resumed request that is not among them."),
    _use(_SCHEDULER, "finish_requests _handle_stopped_request add_request", _OVERRIDDEN, _EDGE,
         "A step may adopt a draft's request, and its request go on as a draft. The step record"
         " names a request that is added."),
    _use(_SCHEDULER, "schedule", _OVERRIDDEN, _EDGE,
         "Before an engine step requests are sorted by program, drafts fill the batch, and the kind"
         " of step is chosen."),
    _use(_SCHEDULER, "has_requests", _OVERRIDDEN, _EDGE,
         "The tokens of drafts are sent although no request is in the batch."),
    _use(_SCHEDULER, "update_from_output", _OVERRIDDEN, _EDGE,
         "After an engine step, drafts' tokens are kept back, log-probabilities read and packed."
         " Wrong drafted tokens are taken back before, except of stale outputs."),
    _use(_SCHEDULER, "_preempt_request", _OVERRIDDEN, f"{_EDGE} {_QUOTA} {_PASSES}",
         "Preemptions are counted. A smaller quota causes them. A preempted draft waits nowhere."),
    _use(_SCHEDULER, "_enqueue_waiting_request", _CALLED, _SPECULATION,
         "A draft that goes on is put in line."),
    _use(_SCHEDULER, "_holds_kv_blocks", _WORKINGS, _SPECULATION,
         "A paused draft is PREEMPTED and has computed tokens: it resumes with its KV."),
    _use(_SCHEDULER, "_free_request_blocks", _OVERRIDDEN, f"{_EDGE} {_SPECULATION} {_PASSES}",
         "Requests that do not run give up their KV first. A deterministic request begins its"
         " windows anew."),
    _use(_SCHEDULER, "pause_state set_pause_state", _CALLED, f"{_QUOTA} {_PASSES}",
         "The engine stands still while its KV is offloaded."),
    _use(_SCHEDULER, "running waiting kv_holding_waiting deferred_waiting requests", _ACCESSED,
         _OURS,
         "Drafts move between the batch, the queues, and a state in neither."),
    _use(_SCHEDULER, "max_num_running_reqs has_mamba_layers", _ACCESSED, "inside/token_drafts.py",
         "How many rows a step may have, and whether layers have a state that no wrong token"
         " may enter."),
    _use(_SCHEDULER, "kv_cache_config", _ACCESSED, _QUOTA,
         "A request has blocks of each group of layers."),
    _use("v1.kv_cache_interface:KVCacheSpec", "max_memory_usage_bytes page_size_bytes", _CALLED,
         _QUOTA, "Counts the blocks of a request of full length, in each group."),
    _use(_SCHEDULER, "vllm_config cache_config kv_cache_manager max_model_len max_num_active_reqs",
         _ACCESSED, f"{_SPECULATION} {_QUOTA} {_WINDOWS} {_EDGE}",
         "The limits within which drafts and the quota are planned."),
    _use("v1.core.sched.interface:PauseState", "PAUSED_ALL UNPAUSED", _ACCESSED, _QUOTA,
         "The engine stands still while its KV is offloaded."),
    _use("v1.core.sched.request_queue", "FCFSRequestQueue", _EXACT, f"{_SPECULATION} {_EDGE}",
         "It is a deque, which is sorted: its last request is the first to give up its KV."),
    _use("v1.core.sched.request_queue:FCFSRequestQueue", "add_request remove_request", _CALLED,
         _SPECULATION, "Drafts leave a queue and join another."),
    _use("v1.core.sched.output", "SchedulerOutput", _NAMED, f"{_EDGE} {_SPECULATION} {_PASSES}",
         "What `schedule` returns."),
    _use("v1.core.sched.output:SchedulerOutput", "num_scheduled_tokens", _ACCESSED,
         f"{_SPECULATION} {_EDGE}", "Names the requests of an engine step."),
    _use("v1.outputs", "ModelRunnerOutput", _NAMED, f"{_EDGE} {_PASSES}",
         "A parameter of `update_from_output`."),
    _use(_MANAGER, "allocate_slots", _REPLACED, f"{_EDGE} {_WINDOWS}",
         "Of our scheduler's own manager: requests that do not run give up their KV first, and a"
         " window gets all of its blocks."),
    _use(_MANAGER, "get_block_ids", _CALLED, _QUOTA,
         "Finds the requests whose blocks a smaller quota takes."),
    _use(_MANAGER, "block_pool", _ACCESSED, _QUOTA, "The quota reserves blocks of the pool."),
    _use(_POOL, "get_new_blocks free_blocks evict_blocks touch get_num_free_blocks", _CALLED,
         f"{_QUOTA} {_SPECULATION}", "The quota takes blocks out of the pool and returns them."),
    _use(_POOL, "blocks num_gpu_blocks", _ACCESSED, _QUOTA,
         "Blocks are numbered from 0. One is the null block, which no request gets."),
    _use("v1.core.kv_cache_utils:KVCacheBlock", "block_id ref_cnt block_hash", _ACCESSED,
         _QUOTA, "Tells which blocks hold KV that is of use."),
)  # fmt: skip

_REQUEST = "v1.request:Request"

REQUESTS = (
    _use(_REQUEST, "__init__", _CALLED, _SPECULATION, "Builds the request that draws a draft."),
    _use(_REQUEST, "_block_hasher", _ACCESSED, _SPECULATION,
         "A draft's blocks are found by prefix, as those of any request."),
    _use(_REQUEST,
         "request_id client_index arrival_time priority sampling_params prompt_token_ids"
         " num_prompt_tokens output_token_ids num_output_tokens all_token_ids num_tokens"
         " num_computed_tokens status stop_reason max_tokens num_in_flight_tokens"
         " num_output_placeholders num_stale_output_tokens drop_stale_output",
         _ACCESSED, f"{_OURS} {_EDGE}",
         "A request serves several steps: its limit, status and priority change as it lives."),
    _use("v1.request:RequestStatus", "RUNNING PREEMPTED FINISHED_STOPPED FINISHED_ABORTED",
         _ACCESSED, f"{_SPECULATION} {_EDGE}",
         "A paused draft is PREEMPTED. A step that ended at its boundary has stopped."),
    _use("v1.request:RequestStatus", "is_finished", _WORKINGS, _SPECULATION,
         "PREEMPTED is not a finished status."),
    _use("v1.core.sched.utils", "check_stop", _WORKINGS, _SPECULATION,
         "Reads the limit at each token, so that it may change."),
    _use("v1.engine", "EngineCoreReadyResponse", _NAMED, "compat.py",
         "A message of an engine process; its decoder is made early."),
    _use("v1.engine:EngineCoreOutputs", "outputs", _ACCESSED,
         f"compat.py {_SPECULATION} {_JOINED}",
         "Outputs of drafts are taken out, and those of adopted drafts put in."),
    _use("v1.engine:EngineCoreOutputs", "finished_requests scheduler_stats", _ACCESSED, _JOINED,
         "A message that has none of them, and no outputs, is not sent."),
    _use("v1.engine:EngineCoreOutput", "finished", _ACCESSED, _JOINED,
         "The end of a step is sent at once."),
    _use("v1.engine:EngineCoreOutput",
         "request_id new_token_ids new_logprobs finish_reason stop_reason kv_transfer_params"
         " prefill_stats",
         _ACCESSED, f"{_SPECULATION} {_JOINED}",
         "A draft's tokens are reported under the name of the step that adopts it."),
    _use("v1.engine:FinishReason", "STOP LENGTH", _ACCESSED, _SPECULATION,
         "Why an adopted draft's step ended."),
    _use("v1.outputs:ModelRunnerOutput", "logprobs req_id_to_index", _ACCESSED, _EDGE,
         "The entropy of a new token's distribution decides whether its step has ended."),
    _use("v1.outputs:LogprobsLists", "slice_request", _CALLED, _EDGE,
         "A request's rows."),
    _use("v1.sample.sampler:Sampler", "gather_logprobs", _WORKINGS, "inside/outputs.py",
         "After the token's own log-probability come those of the likeliest, in order."),
    _use("v1.outputs:LogprobsLists", "logprobs", _ACCESSED,
         f"{_SPECULATION} {_EDGE} inside/outputs.py",
         "The token's own log-probability is the first of its row."),
    _use("v1.metrics.stats:PrefillStats", "set", _CALLED, _SPECULATION,
         "A step that adopts a draft reports the draft's KV as cached."),
)  # fmt: skip

_LLM = "v1.engine.async_llm:AsyncLLM"
_LIVE, _ARRIVALS = "process/live_process.py", "inside/calls.py"

FRONT_END = (
    _use(_LLM, "from_vllm_config shutdown", _CALLED, _LIVE,
         "Starts and ends an engine process."),
    _use(_LLM, "generate encode", _CALLED, "generator.py verifier.py serving/scores.py",
         "Runs a step or scores a path. The first three arguments go by position."),
    _use(_LLM, "errored output_handler output_processor engine_core", _ACCESSED,
         f"{_LIVE} process/restarts.py",
         "Open requests fail at once when the process has ended."),
    _use("v1.engine.output_processor:OutputProcessor", "propagate_error", _CALLED, _LIVE,
         "Open requests fail at once when the process has ended."),
    _use("v1.engine.core_client:AsyncMPClient", "call_utility_async", _CALLED,
         _LIVE, "Calls a function of ours between two engine steps."),
    _use("v1.engine.core_client:AsyncMPClient", "add_request_async abort_requests_async",
         _REPLACED, _LIVE, "The requests of one turn of the event loop go out together."),
    _use("v1.engine.core_client:AsyncMPClient", "client_index", _ACCESSED, _LIVE,
         "What vLLM writes into a request before it is sent."),
    _use("v1.engine.core_client:MPClient", "ensure_alive", _CALLED, _LIVE,
         "What vLLM asks before a request is sent."),
    _use("v1.engine:EngineCoreRequest",
         "request_id client_index sampling_params mm_features resumable prompt_embeds",
         _ACCESSED, f"{_LIVE} {_ARRIVALS}",
         "A request with a grammar is prepared in a thread of the engine. Of the others, the"
         " parameters that several share are sent apart."),
    _use("v1.engine.output_processor:OutputProcessor", "request_states", _ACCESSED, _LIVE,
         "A request that could not be sent ends with the error."),
    _use("v1.engine.output_processor:RequestState", "queue", _ACCESSED, _LIVE,
         "A request that could not be sent ends with the error."),
    _use("v1.engine.output_processor:RequestOutputCollector", "put", _CALLED, _LIVE,
         "Takes an error in the place of an output."),
    _use("v1.serial_utils", "MsgpackEncoder", _CALLED, _LIVE,
         "Requests that go out together are encoded as vLLM encodes one."),
    _use("v1.serial_utils", "MsgpackDecoder", _CALLED, _ARRIVALS,
         "Requests that arrive together are decoded as vLLM decodes one."),
    _use("v1.engine", "EngineCoreRequestType", _NAMED, _ARRIVALS,
         "Names what comes alone as a message."),
    _use("v1.engine.core:EngineCore", "preprocess_add_request", _CALLED, _ARRIVALS,
         "What vLLM does with a request that comes alone."),
    _use("v1.engine.core:EngineCoreProc", "_handle_client_request _handle_request_preproc_error",
         _CALLED, _ARRIVALS,
         "What vLLM does with a request that comes alone, and with a call of one of its methods."),
    _use("inputs", "tokens_input", _CALLED, "generator.py verifier.py",
         "A prompt of tokens. vLLM prepares any other one in a thread of its own."),
    _use("v1.engine.core_client:MPClient", "resources", _ACCESSED, _LIVE,
         "Leads to the engine's process, which is watched."),
    _use("v1.engine.core_client:BackgroundResources", "__call__", _WORKINGS, _LIVE,
         "Closes the sockets where `shutdown` did not get so far."),
    _use("v1.engine.core_client:BackgroundResources", "engine_manager", _ACCESSED, _LIVE,
         "Leads to the engine's process, which is watched."),
    _use("v1.executor.multiproc_executor", "get_mp_context", _REPLACED, "inside/start_stages.py",
         "The first worker of an engine on several cards says what it does while it starts."),
    _use("utils.system_utils", "get_mp_context", _CALLED, "inside/start_stages.py",
         "vLLM's own choice of how workers start."),
    _use("v1.executor.multiproc_executor:WorkerProc", "make_worker_process", _WORKINGS,
         "inside/start_stages.py", "Names the process of the first worker VllmWorker-0."),
    _use("v1.engine.utils:CoreEngineProcManager", "processes", _ACCESSED, _LIVE,
         "The engine's process, which is watched."),
    _use("v1.engine.utils", "get_mp_context", _REPLACED, "process/start.py",
         "Engine processes are forked from a server that has imported vLLM already."),
    _use("v1.engine.utils:CoreEngineProcManager", "__init__", _WORKINGS, "compat.py",
         "Starts the engine's process by the replaced `get_mp_context`."),
    _use("v1.engine.core:EngineCore", "scheduler model_executor", _ACCESSED,
         "inside/kv/quota.py inside/patches.py inside/calls.py",
         "The functions that we add to it work on the scheduler and the worker."),
    _use("v1.engine.core:EngineCoreProc", "_convert_msgspec_args",
         _WORKINGS, "inside/patches.py inside/calls.py",
         "Calls a method by the name that the daemon sends, so also the one that we add, with no"
         " more arguments than it has parameters."),
    _use("v1.engine.core:EngineCore", "step", _WORKINGS, _EDGE,
         "Computes the model between `schedule` and `update_from_output`, and ends by its errors."),
    _use("v1.engine.core:EngineCore", "step_with_batch_queue", _REPLACED, _PASSES,
         "Schedules a step before it takes the outputs of the one before."),
    _use("v1.engine.core:EngineCore", "batch_queue", _ACCESSED, _PASSES,
         "Steps in flight: (future, SchedulerOutput, future of the model), the oldest last."),
    _use("v1.engine.core:EngineCore",
         "log_error_detail _process_aborts_queue _attach_weight_version", _CALLED, _PASSES,
         "What vLLM does with the outputs of a step in flight."),
    _use("config.scheduler:SchedulerConfig", "async_scheduling", _ACCESSED, _LIVE,
         "Set behind vLLM's own choice, which is no on a CPU."),
    _use("v1.engine.core:EngineCoreProc", "run_engine_core", _WORKINGS, "inside/step_record.py",
         "Logs the error that ends the process, with its type."),
    _use("v1.engine.input_processor:InputProcessor", "assign_request_id", _WORKINGS,
         "inside/step_record.py", "Appends a hyphen and eight letters to a request's name."),
    _use("v1.engine.exceptions", "EngineDeadError EngineGenerateError", _NAMED,
         f"{_LIVE} translate.py", "Become errors of our own."),
    _use("exceptions", "GracefulHTTPError VLLMClientError", _NAMED,
         "translate.py serving/tagged_client.py",
         "Become errors of our own."),
    _use("outputs:RequestOutput", "outputs finished num_cached_tokens kv_transfer_params",
         _ACCESSED, "generator.py", "What the generator streams."),
    _use("outputs:RequestOutput", "add", _REPLACED, "inside/outputs.py serving/search_client.py",
         "Outputs that are joined keep the last one's `kv_transfer_params`."),
    _use("outputs:CompletionOutput", "token_ids finish_reason stop_reason", _ACCESSED,
         "generator.py", "What the generator streams."),
    _use("outputs:PoolingRequestOutput", "outputs", _ACCESSED, "verifier.py",
         "One row of scores for each computed token."),
    _use("outputs:PoolingOutput", "data", _ACCESSED, "verifier.py",
         "One row of scores for each computed token."),
)  # fmt: skip

_ARGS = "engine.arg_utils"

OPTIONS = (
    _use(f"{_ARGS}:AsyncEngineArgs", "enable_log_requests", _ACCESSED, "engine_options.py",
         "An option of our engines."),
    _use(f"{_ARGS}:EngineArgs",
         "model dtype max_model_len max_num_seqs max_num_batched_tokens kv_cache_memory_bytes"
         " gpu_memory_utilization block_size enable_prefix_caching enforce_eager async_scheduling"
         " distributed_executor_backend scheduler_cls worker_extension_cls disable_log_stats"
         " additional_config logits_processors runner pooler_config hf_overrides"
         " cudagraph_capture_sizes quantization quantization_config tokenizer_mode"
         " tensor_parallel_size prefix_match_unit language_model_only",
         _ACCESSED, "engine_options.py generator.py prm/base.py prm/qwen.py prm/step_tag.py",
         "The options of our engines."),
    _use(f"{_ARGS}:EngineArgs", "create_engine_config", _CALLED, _LIVE,
         "Checks the options."),
    _use("v1.executor.uniproc_executor:UniProcExecutor", "collective_rpc", _CALLED,
         "engine_options.py inside/kv/quota.py",
         "Keeps the worker in the engine's process, and calls our extension of it."),
    _use("v1.executor.multiproc_executor:MultiprocExecutor", "collective_rpc", _CALLED,
         "inside/kv/quota.py",
         "Calls our extension in the workers of an engine on several cards."),
    _use("v1.worker.worker_base:WorkerWrapperBase", "init_worker", _WORKINGS, _WORKER,
         "Imports our extension before KV is allocated, and mixes it into the worker."),
    _use("sampling_params:SamplingParams",
         "temperature max_tokens stop stop_token_ids ignore_eos logprobs detokenize skip_clone"
         " output_kind extra_args include_stop_str_in_output skip_reading_prefix_cache"
         " eos_token_id",
         _ACCESSED,
         f"generator.py pair.py batch_invariance.py stock.py {_SPECULATION} {_NOISE}"
         f" {_STEP_MEMORY} {_LIVE} {_ARRIVALS}",
         "The parameters of a step. Ours travel in `extra_args`."),
    _use("", "SamplingParams PoolingParams", _NAMED,
         f"generator.py stock.py verifier.py serving/scores.py {_NOISE} {_ARRIVALS}",
         "The parameters of a request."),
    _use("sampling_params:RequestOutputKind", "DELTA", _ACCESSED,
         "generator.py serving/search_client.py serving/tagged_client.py",
         "An output has only the tokens since the last one."),
    _use("pooling_params:PoolingParams", "task skip_reading_prefix_cache", _ACCESSED, "verifier.py",
         "Scores for each token, with or without the prefix cache."),
    _use("pooling_params:PoolingParams", "extra_kwargs", _ACCESSED,
         "verifier.py serving/scores.py inside/keys.py",
         "The key of the program travels in it."),
    _use("config:PoolerConfig", "task tok_pooling_type use_activation", _ACCESSED,
         "prm/qwen.py prm/base.py serving/scores.py", "Scores for each token, or of a text."),
    _use("config:VllmConfig", "additional_config model_config cache_config", _ACCESSED,
         f"inside/keys.py {_QUOTA} {_TENSOR} {_NOISE} {_SKYWORK}",
         "Carries our own options into the engine's process."),
    _use("config.model:ModelConfig", "max_model_len hf_config pooler_config head_dtype",
         _ACCESSED, f"{_TENSOR} {_SKYWORK}", "What our code in the engine's process works with."),
    _use("config.cache:CacheConfig", "block_size", _ACCESSED, f"{_QUOTA} {_TENSOR}",
         "Tokens of a KV block."),
    _use("config:VllmConfig", "use_v2_model_runner", _WORKINGS, "compat.py",
         "Obeys the variable below: the second model runner refuses our noise."),
    _use("envs",
         "VLLM_USE_V2_MODEL_RUNNER VLLM_USE_FLASHINFER_SAMPLER VLLM_CPU_OMP_THREADS_BIND"
         " VLLM_NO_USAGE_STATS VLLM_LOGGING_LEVEL VLLM_BATCH_INVARIANT"
         " VLLM_USE_BREAKABLE_CUDAGRAPH VLLM_WORKER_MULTIPROC_METHOD",
         _ACCESSED, "compat.py", "A variable that vLLM does not know is ignored silently."),
)  # fmt: skip

_RUNNER = "v1.worker.gpu_model_runner"
_KV = "v1.kv_cache_interface"

KV_MEMORY = (
    _use(_RUNNER, "allocate_kv_cache", _REPLACED, _TENSOR,
         "Two engines share a device, so KV blocks have memory only while they are in use."),
    _use(f"{_RUNNER}:GPUModelRunner", "initialize_kv_cache_tensors", _WORKINGS, _TENSOR,
         "Calls the replaced `allocate_kv_cache` once, for all layers."),
    _use(f"{_RUNNER}:GPUModelRunner", "kv_caches", _ACCESSED, _WORKER,
         "The worker checks that its KV lies in memory of ours."),
    _use("v1.worker.gpu_worker:Worker", "model_runner", _ACCESSED, _WORKER,
         "The worker checks that its KV lies in memory of ours."),
    _use("v1.worker.utils", "allocate_kv_cache", _CALLED, _TENSOR,
         "Lays the KV of each layer out, in the one tensor that it asks `torch.zeros` for."),
    _use("config", "get_current_vllm_config", _CALLED, _TENSOR,
         "The options of the engine whose KV is allocated."),
    _use(f"{_KV}:KVCacheConfig", "num_blocks kv_cache_tensors", _ACCESSED, _TENSOR,
         "How much KV there is."),
    _use(f"{_KV}:KVCacheTensor", "size", _ACCESSED, _TENSOR, "How much KV there is."),
)  # fmt: skip

STEP_MEMORY = (
    _use(f"{_RUNNER}:GPUModelRunner", "_dummy_run _dummy_pooler_run", _CALLED, _STEP_MEMORY,
         "Runs the largest step without requests."),
    _use(f"{_RUNNER}:GPUModelRunner",
         "device dtype is_pooling_model max_num_tokens model model_memory_usage sampler"
         " vllm_config",
         _ACCESSED, _STEP_MEMORY, "What the largest step is, and what the weights take."),
    _use("model_executor.models.interfaces_base:VllmModelForTextGeneration", "compute_logits",
         _CALLED, _STEP_MEMORY, "The logits of the largest step."),
    _use("v1.sample.metadata:SamplingMetadata",
         "temperature all_greedy all_random top_p top_k generators max_num_logprobs no_penalties"
         " prompt_token_ids frequency_penalties presence_penalties repetition_penalties"
         " output_token_ids allowed_token_ids_mask bad_words_token_ids logitsprocs"
         " spec_token_ids",
         _ACCESSED, _STEP_MEMORY, "What the sampler gets in the largest step."),
    _use("v1.sample.logits_processor:LogitsProcessors", "__init__", _CALLED, _STEP_MEMORY,
         "Our noise, as the sampler gets it."),
    _use("config:CUDAGraphMode", "NONE", _ACCESSED, _STEP_MEMORY,
         "The largest step runs without graphs."),
)  # fmt: skip

_PROCESSORS, _RANKS = "v1.sample.logits_processor", "inside/sampling/on_cpu.py"

SAMPLING = (
    _use(_PROCESSORS, "LogitsProcessor", _SUBCLASSED, _NOISE,
         "Tokens are drawn by noise that depends on seed and position alone."),
    _use(f"{_PROCESSORS}:LogitsProcessor", "__init__ is_argmax_invariant update_state apply",
         _OVERRIDDEN, _NOISE, "Tokens are drawn by noise that depends on seed and position alone."),
    _use(f"{_PROCESSORS}:BatchUpdate", "batch_size removed added moved", _ACCESSED,
         f"{_NOISE} {_STEP_MEMORY}", "Tells which request is in which row of the batch."),
    _use(f"{_PROCESSORS}.interface", "AddedRequest", _EXACT, _NOISE,
         "The tuple in which a new request is told."),
    _use(f"{_PROCESSORS}.builtin", "process_dict_updates", _CALLED, _NOISE,
         "Keeps our rows with their requests as the batch changes."),
    _use("config.model:ModelConfig", "get_vocab_size", _CALLED, _NOISE,
         "The kernel that draws tokens is compiled for it at start."),
    _use("v1.sample.sampler", "batched_count_greater_than", _REPLACED,
         f"inside/patches.py {_RANKS}", "A token's rank is counted faster on a CPU."),
    _use("v1.sample.ops", "logprobs", _NAMED, _RANKS, "Has vLLM's own count."),
    _use("v1.sample.ops.logprobs", "batched_count_greater_than", _CALLED, _RANKS,
         "Counts a token's rank on a card."),
    _use("v1.sample.sampler:Sampler", "forward sample apply_logits_processors", _WORKINGS, _NOISE,
         "Log-probabilities are computed before our noise, and the argmax after it."),
)  # fmt: skip

_QWEN = "model_executor.models.qwen2:Qwen2Model"
_REWARD = "model_executor.models.qwen2_rm:Qwen2RewardBaseModel"
_LAYERS = "model_executor.layers"

MODELS = (
    _use("plugins", "DEFAULT_PLUGINS_GROUP", _EXACT, "inside/plugin.py",
         "The group of entry points in which vLLM looks for plugins."),
    _use("plugins", "load_general_plugins", _WORKINGS, "inside/plugin.py",
         "Calls our plugin in each process."),
    _use("", "ModelRegistry", _NAMED, f"inside/plugin.py {_SKYWORK}", "Registers our models."),
    _use("model_executor.models.registry:_ModelRegistry", "get_supported_archs register_model",
         _CALLED, f"inside/plugin.py {_SKYWORK}", "Registers our models."),
    _use("model_executor.models.adapters",
         "as_seq_cls_model seq_cls_model_loader load_weights_using_from_2_way_softmax",
         _WORKINGS, "prm/step_tag.py",
         "Makes a head of two label tokens' rows, as `hf_overrides` asks."),
    _use(_QWEN, "__init__", _CALLED, _SKYWORK, "The body of Skywork's verifier."),
    _use("model_executor.models.qwen2_rm", "Qwen2RewardBaseModel", _SUBCLASSED, _SKYWORK,
         "Skywork's verifier has another head."),
    _use(_REWARD, "load_weights", _OVERRIDDEN, _SKYWORK, "The head's weights have other names."),
    _use(_REWARD, "__init__ forward embed_input_ids", _WORKINGS, _SKYWORK,
         "Body and head are computed by it. Its own head is not built."),
    _use(f"{_LAYERS}.linear:ReplicatedLinear", "__init__", _CALLED, _SKYWORK,
         "The head of Skywork's verifier."),
    _use(f"{_LAYERS}.pooler.tokwise", "pooler_for_token_classify", _CALLED, _SKYWORK,
         "Returns the head's value at each token."),
    _use(f"{_LAYERS}.pooler.activations:PoolerClassify", "__init__", _CALLED, _SKYWORK,
         "The activation of the head's value."),
    _use(f"{_LAYERS}.pooler.activations:PoolerClassify", "forward_chunk", _WORKINGS, _SKYWORK,
         "Of a single value it is the sigmoid."),
    _use("model_executor.models.interfaces_base", "default_pooling_type", _CALLED, _SKYWORK,
         "Asks for a value at each token."),
    _use("model_executor.models.utils:WeightsMapper", "apply", _CALLED, _SKYWORK,
         "Renames the head's weights."),
    _use("model_executor.models.utils:WeightsMapper", "orig_to_new_prefix", _ACCESSED, _SKYWORK,
         "How the head's weights are renamed."),
    _use("model_executor.models.utils", "maybe_prefix", _CALLED, _SKYWORK,
         "Builds the names of Skywork's weights."),
    _use("model_executor.models", "qwen2 qwen2_rm", _NAMED, "inside/preload.py",
         "Imported once for all engine processes."),
    _use("config:DeviceConfig", "device_type", _ACCESSED, "inside/step_times.py",
         "On a CPU large batches have no drafts."),
    _use("v1.attention.backends", "cpu_attn flash_attn triton_attn", _NAMED, "inside/preload.py",
         "Imported once for all engine processes."),
    _use("v1.engine", "async_llm core", _NAMED, "inside/preload.py",
         "Imported once for all engine processes."),
    _use("v1.worker", "cpu_worker gpu_worker", _NAMED, "inside/preload.py",
         "Imported once for all engine processes."),
)  # fmt: skip

SEAMS = (
    *SCHEDULER,
    *REQUESTS,
    *FRONT_END,
    *OPTIONS,
    *KV_MEMORY,
    *STEP_MEMORY,
    *SAMPLING,
    *MODELS,
    *PROTOCOLS,
    *DETERMINISM,
    *SECOND_RUNNER,
)
