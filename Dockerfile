# The command `briquette`, with everything but CUDA. `just docker` builds the image; then, in the directory of a model:
#   docker run --rm --user "$(id -u):$(id -g)" --volume "$PWD:/work" briquette compress model.safetensors -o out --quantize int8

FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
# The caches of cargo stay on the builder, so the program is copied out of them.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked -p briquette-cli && cp target/release/briquette /briquette

# The same Debian as above, so that the C library is no older than the one that was linked.
FROM debian:bookworm-slim
COPY --from=build /briquette /usr/local/bin/briquette
COPY LICENSE-MIT LICENSE-APACHE /usr/share/doc/briquette/
WORKDIR /work
USER 65534:65534
ENTRYPOINT ["briquette"]
CMD ["--help"]
