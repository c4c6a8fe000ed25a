-- feed keeps a table of records, and the order of their changes. KEYS: a hash of the records ("version ends value"), with
-- under "" "life server place top"; and a sorted set of its keys by their place in the feed. Times in us. ARGV: a command,
-- the caller's life, an id for a new life, and: since AFTER N | merge (KEY VERSION ENDS VALUE)... | drop (KEY VERSION)... |
-- set KEY EXPECTED ENDS VALUE. Answers the life, and alone in another life than the caller's.
local records, feed, op = KEYS[1], KEYS[2], ARGV[1]
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local function hex(s) return (string.gsub(s, '.', function(c) return string.format('%02x', string.byte(c)) end)) end
local function info(section) -- an ACL may forbid it
  local text = redis.pcall('INFO', section)
  return type(text) == 'string' and text or ''
end
local replication = info('replication')
if string.find(replication, 'role:slave', 1, true) then return redis.error_reply('READONLY the server is a replica') end
-- Another run, or another replication of a server that was a replica itself, may have other data.
local server = string.match(info('server'), 'run_id:(%x+)') or '-'
if string.find(replication, 'master_replid2:%x*[^0%s]') then server = server .. string.match(replication, 'replid:(%x+)') end
local life, at, place, top = string.match(redis.call('HGET', records, '') or '', '^(%x+) (%S+) (%d+) (%d+)$')
if not life or redis.call('ZCARD', feed) + 1 ~= redis.call('HLEN', records) then -- lost, as a whole or in part
  redis.call('DEL', records, feed)
  at, place, top = nil, 0, 0
end
local function keep() redis.call('HSET', records, '', string.format('%s %s %.0f %.0f', life, server, place, top)) end
-- Places only rise in one life. A lower one is that of an older copy, where INFO does not tell of a restart.
if at ~= server or op == 'since' and ARGV[2] == life and tonumber(ARGV[4]) > tonumber(place) then
  life = ARGV[3]
  keep()
end
local function get(key)
  local v, e, x = string.match(redis.call('HGET', records, key) or '', '^(%d+) (%d+) (.*)$')
  return tonumber(v or 0), tonumber(e or 0), x or ''
end
local function put(key, version, ends, value)
  local v, e, x = get(key)
  if version > v or version == v and (ends > e or ends == e and hex(value) > hex(x)) then -- hex: in any locale
    place, top = place + 1, math.max(top, version)
    redis.call('HSET', records, key, string.format('%.0f %.0f ', version, ends) .. value)
    redis.call('ZADD', feed, string.format('%.0f', place), key)
  end
end
if op == 'since' then
  local last = ARGV[2] == life and ARGV[4] or '0'
  local keys = redis.call('ZRANGEBYSCORE', feed, '(' .. last, '+inf', 'LIMIT', 0, ARGV[5])
  if keys[1] then last = redis.call('ZSCORE', feed, keys[#keys]) end
  return { life, string.format('%.0f', now), last, keys, keys[1] and redis.call('HMGET', records, unpack(keys)) or {} }
end
if ARGV[2] ~= life then return { life } end
local changed = ''
if op == 'merge' then
  for i = 4, #ARGV, 4 do put(ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), ARGV[i + 3]) end
elseif op == 'drop' then
  for i = 4, #ARGV, 2 do
    if get(ARGV[i]) == tonumber(ARGV[i + 1]) then
      redis.call('HDEL', records, ARGV[i])
      redis.call('ZREM', feed, ARGV[i])
    end
  end
else
  local v, e, x = get(ARGV[4])
  local is = x ~= '' and (e == 0 or now < e) and v or 0
  if ARGV[5] == '-1' or tonumber(ARGV[5]) == is then
    put(ARGV[4], math.max(now, top + 1), tonumber(ARGV[6]), ARGV[7])
  else
    changed = 'changed'
  end
end
keep()
return { life, changed, redis.call('HGET', records, ARGV[4]) }
