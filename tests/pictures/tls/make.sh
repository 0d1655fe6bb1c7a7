#!/bin/sh
# Makes pictures.example.pem: a key and a certificate for nothing but these tests, good for a hundred years.
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 36500 -subj /CN=pictures.example \
    -addext subjectAltName=DNS:pictures.example -keyout key.pem -out cert.pem
cat key.pem cert.pem >pictures.example.pem
rm key.pem cert.pem
