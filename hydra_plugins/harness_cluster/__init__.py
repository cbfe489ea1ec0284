"""What Hydra finds of the harness: plugins have to lie in the package hydra_plugins."""
