"""The decision core: what is known, both allocations, what to measure next, and the certificate.

Everything here is a pure function of a fleet spec and its evidence: no clock, no randomness, no environment,
no I/O. Imports the standard library, numpy, scipy and pulp, and from this package only the records, errors
and serialization.
"""
