# The simulator on measured operator tables, which are an optional package of 114 MB.

.PHONY: test-simulator bench-simulator

test-simulator: $(VENV)/.simulator  ## test the simulator on measured operator tables
	$(BIN)/python -m pytest tests/simulator tests/simulator_aic

bench-simulator: $(VENV)/.simulator  ## accuracy and cost of the simulator, what its priors save; GRIDS=file.csv
	$(BIN)/python -m benchmarks.simulator.accuracy --silicon $(if $(GRIDS),--grids $(GRIDS)) --out benchmarks/out/simulator
	$(BIN)/python -m benchmarks.simulator.priors --out benchmarks/out/simulator
	$(BIN)/python -m benchmarks.simulator.growth --tables aiconfigurator --out benchmarks/out/simulator

$(VENV)/.simulator: $(VENV)/.dev
	@$(BIN)/uv $(INSTALL) --python $(BIN)/python --constraint constraints.txt --editable '.[dev,simulator]'
	@touch $@
