"""What FlashEdge depends on inside vLLM, name by name, and the start's check that it is there.

`table` lists the names and their use, `source` reads vLLM's files without importing them, `record`
holds what the names looked like in the vLLM that FlashEdge was checked with, `changes` compares.
scripts/vllm_seams makes the record, and compares a vLLM with it in more detail.
"""
