"""The cloud side: target model, verification, gRPC service, command line."""
