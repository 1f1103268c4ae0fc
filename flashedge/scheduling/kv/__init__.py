"""How the KV memory is divided between generator and verifier."""
