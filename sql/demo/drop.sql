drop schema if exists demo_schema cascade
