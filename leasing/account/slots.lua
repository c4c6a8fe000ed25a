-- slots is one operation on the slots of a key, as in slots.go: a sorted set of slots by the time of their end. KEYS:
-- the set. ARGV: look, take, give or clear, the slot in hexadecimal, the limit, and the time of a slot in microseconds.
-- It answers how many slots are taken afterwards, and whether this one was or is.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
-- Ended slots return by the clock of the server that has the set.
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
if ARGV[1] == 'clear' then redis.call('DEL', KEYS[1]) end
local taken, has = redis.call('ZCARD', KEYS[1]), redis.call('ZSCORE', KEYS[1], ARGV[2]) ~= false
if ARGV[1] == 'take' and not has and taken < tonumber(ARGV[3]) then
  redis.call('ZADD', KEYS[1], string.format('%.0f', now + ARGV[4]), ARGV[2])
  -- The time of slots is a part of the key, so the slot that is taken last also ends last.
  redis.call('PEXPIRE', KEYS[1], math.ceil(ARGV[4] / 1000))
  taken, has = taken + 1, true
elseif ARGV[1] == 'give' and has then
  taken = taken - redis.call('ZREM', KEYS[1], ARGV[2])
end
return { taken, has and 1 or 0 }
