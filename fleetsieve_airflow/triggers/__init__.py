"""Waiting without holding a worker: hooks only, no decisions."""
