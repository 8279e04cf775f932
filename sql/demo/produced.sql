copy demo_schema.produced (event_id) from stdin
