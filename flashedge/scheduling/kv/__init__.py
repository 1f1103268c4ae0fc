"""Pure decisions about the KV memory: how it is divided, and which engine owns it."""
