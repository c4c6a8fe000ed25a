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

-- Who shares the store, and what each node says of itself.
CREATE TABLE sluice_nodes (
  prefix text NOT NULL,
  name   text NOT NULL,
  said   text NOT NULL,
  at     timestamptz NOT NULL,
  PRIMARY KEY (prefix, name)
);
