# The one command that checks everything.
check:
    .ci/run

# Starts the services that test runs share, and says where they are.
up:
    cargo run --quiet -p waybill-lab --bin services -- up

# Ends them.
down:
    cargo run --quiet -p waybill-lab --bin services -- down

# The long counts of the random tests.
long:
    WAYBILL_CASES=10000 cargo nextest run --workspace -E 'test(random_programs) + test(out_of_reach)'

# The figures at full size.
bench:
    cargo run --release -p waybill -- bench box
