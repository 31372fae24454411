# The one command that checks everything.
check:
    .ci/run

# Starts the services that test runs share, and says where they are.
up:
    cargo run --quiet -p waybill-lab --bin services -- up

# Ends them.
down:
    cargo run --quiet -p waybill-lab --bin services -- down
