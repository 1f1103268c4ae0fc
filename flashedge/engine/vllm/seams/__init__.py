"""What FlashEdge depends on inside vLLM, name by name, and the check that it is still there.

`table` lists the names and their use, `source` reads vLLM's files without importing them, `record`
holds what the names looked like in the vLLM that FlashEdge was checked with, `changes` compares.
"""
