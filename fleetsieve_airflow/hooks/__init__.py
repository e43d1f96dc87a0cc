"""All input and output, one outside system per hook; hooks speak in records and never import the core."""
