"""The tests run against the program itself, with its own PostgreSQL. Set WAYBILL_BINARY to its path."""
