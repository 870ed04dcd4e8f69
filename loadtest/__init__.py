"""Load against servers over HTTP, and reports about it. Imports nothing of the server."""
