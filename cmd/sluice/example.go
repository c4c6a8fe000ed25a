package main

// exampleConfig is what serve has without rules of your own.
const exampleConfig = `# sluice's built-in example. Your own: sluice serve --config DIR|FILE
domain: example
descriptors:
  # Each user may do 3 requests an hour; alice 5.
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 3}
  - key: user
    value: alice
    rate_limit: {unit: hour, requests_per_unit: 5}
  # A login is tried 1 time a second, in bursts of 3.
  - key: login
    algorithm: token_bucket
    burst: 3
    rate_limit: {unit: second, requests_per_unit: 1}
`

// exampleRequest is a body for /json that the example limits to 3 an hour.
const exampleRequest = `{"domain":"example","descriptors":[{"entries":[{"key":"user","value":"bob"}]}]}`
