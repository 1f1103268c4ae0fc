"""HTTP: routes, shapes, limits. Speaks to the runtime only through `contract.ServicePort`."""
