-- feed keeps a table of records, and the order of their changes. KEYS: a hash of the records ("version ends value"), with
-- under "" "life server place top"; a sorted set of its keys by their place in the feed; and one of keys whose records
-- were removed or end, by the time from which they are dropped. Times in us. ARGV: a command, the caller's life, an id for
-- a new life, the time for which removals stay, and: since AFTER N | merge (KEY VERSION ENDS VALUE)... | set KEY EXPECTED
-- ENDS VALUE. Answers the life, and alone in another life than the caller's.
local records, feed, over, op = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
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
  redis.call('DEL', records, feed, over)
  at, place, top = nil, 0, 0
end
local function keep() redis.call('HSET', records, '', string.format('%s %s %.0f %.0f', life, server, place, top)) end
if at ~= server then
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
    redis.call('ZREM', over, key)
  elseif version ~= v or ends ~= e or value ~= x then
    return
  end
  if value == '' or ends > 0 then redis.call('ZADD', over, string.format('%.0f', math.max(now, ends) + ARGV[4]), key) end
end
if op == 'since' then
  local last = ARGV[2] == life and ARGV[5] or '0'
  local keys = redis.call('ZRANGEBYSCORE', feed, '(' .. last, '+inf', 'LIMIT', 0, ARGV[6])
  if keys[1] then last = redis.call('ZSCORE', feed, keys[#keys]) end
  return { life, string.format('%.0f', now), last, keys, keys[1] and redis.call('HMGET', records, unpack(keys)) or {} }
end
if ARGV[2] ~= life then return { life } end
for _, key in ipairs(redis.call('ZRANGEBYSCORE', over, '-inf', string.format('%.0f', now), 'LIMIT', 0, 1000)) do
  for i, command in ipairs({ 'HDEL', 'ZREM', 'ZREM' }) do redis.call(command, KEYS[i], key) end
end
local changed = ''
if op == 'merge' then
  for i = 5, #ARGV, 4 do put(ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), ARGV[i + 3]) end
else
  local v, e, x = get(ARGV[5])
  local is = x ~= '' and (e == 0 or now < e) and v or 0
  if ARGV[6] == '-1' or tonumber(ARGV[6]) == is then
    put(ARGV[5], math.max(now, top + 1), tonumber(ARGV[7]), ARGV[8])
  else
    changed = 'changed'
  end
end
keep()
return { life, changed, redis.call('HGET', records, ARGV[5]) }
