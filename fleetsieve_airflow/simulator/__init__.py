"""Where to look before anything is measured: operator tables, engine model, discrete events, search.

Pure: numpy and scipy, records and errors; no Airflow, no MLflow, no network. Everything here predicts,
nothing here measures, and no prediction carries a certificate unless a spec names ``simulator`` under
``certify_on``.
"""
