"""The HTTP API. It uses the runtime only through `contract.ServicePort`."""
