-- Version 2: the table that all nodes have. The feed's row serialises its commits, so that places are seen in order.
CREATE TABLE sluice_feed (
  prefix text   PRIMARY KEY,
  life   text   NOT NULL, -- of these tables' rows: another one after each loss of them
  place  bigint NOT NULL, -- of the last change
  top    bigint NOT NULL  -- the highest version that there ever was
);
CREATE TABLE sluice_table (
  prefix  text   NOT NULL,
  key     bytea  NOT NULL,
  version bigint NOT NULL,
  ends    bigint NOT NULL,
  value   bytea  NOT NULL,
  place   bigint NOT NULL,
  PRIMARY KEY (prefix, key)
);
CREATE INDEX sluice_table_feed ON sluice_table (prefix, place);
