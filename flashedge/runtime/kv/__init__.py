"""The KV memory of both engines while runs go on."""
