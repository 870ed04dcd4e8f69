"""A mix of users for locust, and the report about it. What imports locust is ``users`` and the locustfile alone."""
