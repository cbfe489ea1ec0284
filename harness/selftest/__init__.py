"""The selftest: is damage of a known kind and dose caught, by what, how often, and how often is there a false alarm?"""
