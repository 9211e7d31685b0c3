import hypothesis

# Same examples every time, and no limit on an example's time: the first one compiles.
hypothesis.settings.register_profile("fat2thin", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("fat2thin")
