"""Everything numba compiles, each module beside the codec that defines what is right.

    primitives ◀── records ◀── units, queues, index    formats.columns, through `columns`
        ▲   ▲ ◀─── single                              store.log.single_put
        │   └───── blocks ◀── dispatch                 formats.columns
        │                ◀── frames ◀── sends          broker.fast.fast_send
        └───────── rows, metaq                         lake.arrow, metaq.formats

Imported by name only, through `mqlake.compiled.load`: importing a kernel imports numba. Compiled code does no I/O.

Input arrays arrive read-only and output arrays writable, of one type each (the callers see to it), so each function is
compiled for one signature.
"""
