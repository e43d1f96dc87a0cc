# What is seen in a browser. Needs root once, for Debian's Chromium; pictures are left in .local/browser.

.PHONY: test-browser

test-browser: $(VENV)/.dev  ## look at Airflow's and MLflow's pages with headless Chromium (installs Debian's package)
	bash tests/browser/install.sh
	FLEETSIEVE_TEST_BROWSER=1 $(BIN)/python -m pytest -v tests/browser
