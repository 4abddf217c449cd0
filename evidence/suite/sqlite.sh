#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# A database in memory: tables filled by a generator, indices, joins, updates.
#   sqlite.sh ROWS
exec sqlite3 :memory: <<SQL
PRAGMA temp_store = memory;
CREATE TABLE person(id INTEGER PRIMARY KEY, name TEXT, city INTEGER, born INTEGER);
CREATE TABLE visit(person INTEGER, day INTEGER, paid REAL, note TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < $1)
    INSERT INTO person SELECT i, printf('name %x', i * 2654435761 % 4294967296), i * 40503 % 997, 1930 + i * 7919 % 80 FROM n;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < $1 * 3)
    INSERT INTO visit SELECT i * 1103515245 % $1 + 1, i * 12345 % 3650, i * 31 % 1000 / 7.0, printf('%d.%d', i, i % 17) FROM n;
CREATE INDEX by_person ON visit(person);
CREATE INDEX by_name ON person(name);
CREATE INDEX by_day ON visit(day, paid);
SELECT city, count(*), round(sum(paid), 2) AS total FROM person JOIN visit ON person = id WHERE born > 1975 GROUP BY city ORDER BY total DESC LIMIT 5;
SELECT p.name, count(*) AS times FROM visit v JOIN person p ON p.id = v.person WHERE v.day BETWEEN 100 AND 400 GROUP BY p.name ORDER BY times DESC, p.name LIMIT 3;
UPDATE visit SET paid = paid * 1.1 WHERE person IN (SELECT id FROM person WHERE city % 5 = 2);
DELETE FROM visit WHERE day % 11 = 3;
SELECT count(*), round(sum(paid), 2) FROM visit;
SELECT count(DISTINCT substr(name, 6, 5)) FROM person;
SQL
