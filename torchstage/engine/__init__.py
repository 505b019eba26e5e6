"""The engine: callables and indices in, finished batches out. Standard library only; not public.

Guarantees: it never sees a tensor, a sampler or a device. Modules import downward only:
``pipeline -> pool, segment, gather -> channel, ticket, stats, parking, priority``.
"""
