"""How good the simulator is: accuracy against real measurements, cost against size."""
