# The evaluation against recorded grids, which stay outside the repository.

.PHONY: benchmark benchmark-full benchmark-sample bench-replan bench-history

benchmark: $(VENV)/.dev  ## evaluate the saving: GRIDS=a.csv,b.csv; resumable, writes benchmarks/RESULTS.md
	@$(BIN)/python -m benchmarks --grids "$(call grids)"

benchmark-full: $(VENV)/.dev  ## the long evaluation: three times the fleets, 200 random orders, 10 noisy draws
	@$(BIN)/python -m benchmarks --grids "$(call grids)" --full

benchmark-sample: $(VENV)/.dev  ## a quick table over 36 small fleets, for tuning the core
	@$(BIN)/python -m benchmarks --grids "$(call grids)" --sample

grids = $(or $(GRIDS),$(error Say which recorded grids to use: make $@ GRIDS=path/to/grids.csv))

bench-replan: $(VENV)/.dev  ## what planning a release again costs; GRIDS=a.csv,b.csv adds recorded grids; writes benchmarks/REPLAN.md
	@$(BIN)/python -m benchmarks.replan $(if $(GRIDS),--grids "$(GRIDS)")

bench-history: $(VENV)/.dev  ## how long MLflow, Airflow's page and a decision take with 200 campaigns in the history
	@$(BIN)/python -m benchmarks.history
