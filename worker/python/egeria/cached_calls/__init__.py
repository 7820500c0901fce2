"""egeria.cached(): calls of any network that nothing trains are served from the cache."""
