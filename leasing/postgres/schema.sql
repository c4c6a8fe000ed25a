-- The schema of a Sluice, version 1.
CREATE TABLE sluice_accounts (
  name    text   NOT NULL,
  over    bigint NOT NULL, -- microseconds since 1970, from when on the account is over; 0: "until" says it
  version bigint NOT NULL,
  until   bigint NOT NULL,
  data    bytea  NOT NULL,
  PRIMARY KEY (name, over)
) PARTITION BY RANGE (over);
CREATE TABLE sluice_accounts_0 PARTITION OF sluice_accounts FOR VALUES FROM (0) TO (1) WITH (fillfactor = 70);

-- What was settled of rules with audit: one row for each message, and for each lease that was credited.
CREATE TABLE sluice_events (
  id      bigint GENERATED ALWAYS AS IDENTITY,
  prefix  text   NOT NULL, -- CACHE_KEY_PREFIX of the nodes
  at      timestamptz NOT NULL,
  rule    text   NOT NULL,
  key     text   NOT NULL,
  kind    text   NOT NULL,
  holder  text   NOT NULL,
  window_number bigint NOT NULL, -- 0: of a bucket
  window_ends   timestamptz,
  fence   bigint NOT NULL,
  taken   bigint NOT NULL,
  spent   bigint NOT NULL,
  total   bigint NOT NULL,
  granted bigint NOT NULL,
  need    bigint NOT NULL,
  of_limit bigint NOT NULL,
  bound   bigint NOT NULL,
  sum     bigint NOT NULL,
  in_hand bigint NOT NULL,
  cut     bigint NOT NULL
);
CREATE INDEX sluice_events_by_key ON sluice_events (prefix, key, id);
CREATE INDEX sluice_events_by_time ON sluice_events (at);

-- Who shares the store, and what each node says of itself.
CREATE TABLE sluice_nodes (
  prefix text NOT NULL,
  name   text NOT NULL,
  said   text NOT NULL,
  at     timestamptz NOT NULL,
  PRIMARY KEY (prefix, name)
);
