"""For an upgrade of vLLM: what is different in another one, and the record of a new one."""
