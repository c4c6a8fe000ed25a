-- nodes writes what a node says of itself, forgets those that have said nothing
-- for a minute, and returns all: name, seconds since it was heard, what it says.
-- KEYS[1] is a hash by name; ARGV: name, what it says ("" to leave)
local now = tonumber(redis.call('TIME')[1])
if ARGV[2] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], now .. ' ' .. ARGV[2])
end
redis.call('EXPIRE', KEYS[1], 120)
local out = {}
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  local seen, says = string.match(fields[i + 1], '^(%d+) (.*)$')
  if not seen or now - seen > 60 then
    redis.call('HDEL', KEYS[1], fields[i])
  elseif #out < 1000 then
    out[#out + 1] = { fields[i], now - seen, says }
  end
end
return out
