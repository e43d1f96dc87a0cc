"""Thin operators of a campaign: context in, one hook and one core function, a JSON document out.

They can be combined freely; :func:`fleetsieve_airflow.dag.fleet_plan` is the combination that ends in a
certificate.
"""
