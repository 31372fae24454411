# Runs every check, as CI does.
check:
    .ci/run

# Starts the services that test runs share, and prints their addresses.
up:
    cargo run --quiet -p waybill-services --bin services -- up

# Stops these services.
down:
    cargo run --quiet -p waybill-services --bin services -- down

# Runs the random tests with many cases.
long:
    WAYBILL_CASES=10000 cargo nextest run --workspace -E 'test(random_programs) + test(out_of_reach)'

# Runs the box benchmark at full size.
bench:
    cargo run --release -p waybill-lab --bin waybill-lab -- bench box
