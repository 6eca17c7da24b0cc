-- The tables of package policy, for MySQL 8.0.17, MariaDB 10.2.2 and later. Run it once. Each statement ends with a blank line. The
-- collations, one for each of the two, tell apart texts that differ in spaces at their end.

CREATE TABLE rate_limit_counter (n BIGINT NOT NULL);

INSERT INTO rate_limit_counter VALUES (0);

CREATE TABLE rate_limit_rule (
	name             VARCHAR(128) NOT NULL,            -- the rule's identity: its budgets belong to it
	plan             VARCHAR(128) NOT NULL DEFAULT '', -- '' is the rule itself; else the row holds the limit or the share of that plan only
	description      VARCHAR(1024) NOT NULL DEFAULT '',
	match_route      TEXT NOT NULL DEFAULT (''),       -- patterns of net/http's ServeMux, one a line; '' is every request
	match_attributes TEXT NOT NULL DEFAULT (''),       -- JSON: {"region": ["eu", "us"]}; '' is every request
	match_more       TEXT NOT NULL DEFAULT (''), -- JSON: {"not": {"region": ["eu"], "route": ["/bulk/"]}, "prefix": {...}, "suffix": {...}, "absent": ["user"]}
	allow            BOOLEAN NOT NULL DEFAULT false, -- exempts what it matches from all rules; "limit" is '' then
	`key`            VARCHAR(1024) NOT NULL DEFAULT '', -- attributes, with commas: 'user', 'ip', 'route,user'; '' is one budget for all
	`limit`          VARCHAR(255) NOT NULL DEFAULT '',          -- 'token-bucket 100/s burst 200'
	overrides        MEDIUMTEXT NOT NULL DEFAULT (''), -- JSON: [{"key": ["acme"], "limit": "blocked"}]
	share            INT NOT NULL DEFAULT 0, -- above 0: keys share "limit", and this is the weight of those without another; with a plan, the weight of its keys, and "limit" is ''
	instead          VARCHAR(1024) NOT NULL DEFAULT '', -- rules that it takes the place of, with commas: 'api, service'
	limit_from       VARCHAR(128) NOT NULL DEFAULT '', -- the attribute that holds a key's limit
	notify           VARCHAR(255) NOT NULL DEFAULT '', -- shares of the limit to notify of, with commas: '80%, 100%'
	cost             VARCHAR(128) NOT NULL DEFAULT '', -- '' is the caller's; else a number or an attribute
	more             MEDIUMTEXT NOT NULL DEFAULT (''), -- JSON: further fields as in a file, {"costs": [{"match": {"route": ["/bulk/"]}, "cost": 20}], "actual": "tokens"}
	optional         BOOLEAN NOT NULL DEFAULT false,   -- does not apply where a key's attribute is missing
	shadow           BOOLEAN NOT NULL DEFAULT false,   -- decides and reports, and denies nothing
	is_active        BOOLEAN NOT NULL DEFAULT true,
	changed_by       VARCHAR(128) NOT NULL DEFAULT '', -- who changed the row last: for people
	version          BIGINT NOT NULL DEFAULT 0,        -- set by a trigger; what readers poll
	created_at       TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
	updated_at       TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6),
	PRIMARY KEY (name, plan)
) CHARACTER SET utf8mb4 /*!80017 COLLATE utf8mb4_0900_bin */ /*M!100202 COLLATE utf8mb4_nopad_bin */;

CREATE TRIGGER rate_limit_rule_insert BEFORE INSERT ON rate_limit_rule FOR EACH ROW
	UPDATE rate_limit_counter SET n = n + 1;

CREATE TRIGGER rate_limit_rule_insert_version BEFORE INSERT ON rate_limit_rule FOR EACH ROW FOLLOWS rate_limit_rule_insert
	SET NEW.version = (SELECT n FROM rate_limit_counter);

CREATE TRIGGER rate_limit_rule_update BEFORE UPDATE ON rate_limit_rule FOR EACH ROW
	UPDATE rate_limit_counter SET n = n + 1;

CREATE TRIGGER rate_limit_rule_update_version BEFORE UPDATE ON rate_limit_rule FOR EACH ROW FOLLOWS rate_limit_rule_update
	SET NEW.version = (SELECT n FROM rate_limit_counter);

CREATE TABLE rate_limit_setting (
	name  VARCHAR(128) PRIMARY KEY, -- 'kill_switch' or 'attributes'
	value VARCHAR(255) NOT NULL     -- 'true' lets every request pass; 'user, plan' are attributes that the program supplies
) CHARACTER SET utf8mb4 /*!80017 COLLATE utf8mb4_0900_bin */ /*M!100202 COLLATE utf8mb4_nopad_bin */;

CREATE TABLE rate_limit_violation (
	rule        VARCHAR(255) NOT NULL,
	`key`       VARCHAR(255) NOT NULL,            -- of the budget; a hash if keys are hashed, or long
	minute      DATETIME NOT NULL,                -- in which the denials were, in UTC as the other times
	`user`      VARCHAR(1024) NOT NULL DEFAULT '', -- the attribute "user" of the last of them
	route       VARCHAR(1024) NOT NULL DEFAULT '', -- the endpoint
	ip          VARCHAR(255) NOT NULL DEFAULT '',
	cost        BIGINT NOT NULL,                  -- of the last
	remaining   BIGINT NOT NULL,                  -- what was left at the last
	retry_after DOUBLE NOT NULL,                  -- seconds, at the last
	degraded    BOOLEAN NOT NULL DEFAULT false,
	first_at    DATETIME(6) NOT NULL,
	last_at     DATETIME(6) NOT NULL,
	count       BIGINT NOT NULL,
	PRIMARY KEY (rule, `key`, minute),
	INDEX rate_limit_violation_last (last_at),    -- who is being limited now
	INDEX rate_limit_violation_key (`key`, last_at) -- what happened to this key
) CHARACTER SET utf8mb4 /*!80017 COLLATE utf8mb4_0900_bin */ /*M!100202 COLLATE utf8mb4_nopad_bin */;

-- A table that was made before it had the column more gets it by this statement:
--   ALTER TABLE rate_limit_rule ADD COLUMN more MEDIUMTEXT NOT NULL DEFAULT ('');
