// The official client for Node: `node client.mjs CASE`, with BASE_URL and API_KEY in the environment.
// Ends with status 0 if the case holds. Outcomes are forced by a schema or a tool choice: the model is weak.

import assert from 'node:assert/strict';
import OpenAI from 'openai';

const { BASE_URL: baseURL, API_KEY: apiKey } = process.env;
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0, timeout: 60_000 });

const ANSWER = 'The capital of France is Paris.';
const france = {
  model: 'smollm2',
  temperature: 0,
  messages: [{ role: 'user', content: 'Name the capital of France.' }],
};
const parameters = {
  type: 'object',
  properties: { place: { type: 'string', maxLength: 20 }, unit: { enum: ['celsius', 'fahrenheit'] } },
  required: ['place', 'unit'],
  additionalProperties: false,
};
const tool = { type: 'function', function: { name: 'get_weather', description: 'The weather now.', parameters } };
const weather = {
  model: 'smollm2',
  temperature: 0,
  max_tokens: 200,
  messages: [{ role: 'user', content: 'What is the weather in Paris, in celsius?' }],
  tools: [tool],
  tool_choice: 'required',
  parallel_tool_calls: false,
};

function checkArguments(text) {
  const found = JSON.parse(text);
  assert.deepEqual(Object.keys(found).sort(), ['place', 'unit']);
  assert.ok(typeof found.place === 'string' && [...found.place].length <= 20);
  assert.ok(['celsius', 'fahrenheit'].includes(found.unit));
}

const cases = {
  async chat() {
    const answer = await client.chat.completions.create(france);
    assert.equal(answer.choices[0].message.content, ANSWER);
    assert.equal(answer.choices[0].finish_reason, 'stop');
    assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
    assert.ok(answer._request_id);
    const names = [];
    for await (const model of client.models.list()) names.push(model.id);
    assert.deepEqual(names, ['smollm2']);
  },

  async stream() {
    let text = '';
    let reason = null;
    let usage = null;
    const options = { stream: true, stream_options: { include_usage: true } };
    for await (const chunk of await client.chat.completions.create({ ...france, ...options })) {
      text += chunk.choices[0]?.delta.content ?? '';
      reason = chunk.choices[0]?.finish_reason ?? reason;
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, ANSWER);
    assert.equal(reason, 'stop');
    assert.ok(usage.completion_tokens > 0);
  },

  async stream_helper() {
    let text = '';
    const stream = client.chat.completions.stream(france).on('content', (delta) => (text += delta));
    const final = await stream.finalChatCompletion();
    assert.equal(text, ANSWER);
    assert.equal(final.choices[0].message.content, ANSWER);
    assert.equal(await stream.finalContent(), ANSWER);
  },

  async leave_a_stream() {
    const stream = await client.chat.completions.create({ ...france, max_tokens: 3000, ignore_eos: true, stream: true });
    for await (const chunk of stream) {
      if (chunk.choices[0].delta.content) break; // aborts the request
    }
  },

  async tools_stream() {
    const stream = client.chat.completions.stream(weather);
    const deltas = [];
    const done = [];
    stream.on('tool_calls.function.arguments.delta', (event) => deltas.push(event.arguments_delta));
    stream.on('tool_calls.function.arguments.done', (event) => done.push(event));
    const final = await stream.finalChatCompletion();
    assert.equal(final.choices[0].finish_reason, 'tool_calls');
    const [call, ...others] = final.choices[0].message.tool_calls;
    assert.equal(others.length, 0);
    assert.equal(call.function.name, 'get_weather');
    checkArguments(call.function.arguments);
    assert.equal(deltas.join(''), call.function.arguments);
    assert.equal(done.length, 1);
    const whole = await client.chat.completions.create(weather);
    assert.deepEqual(whole.choices[0].message.tool_calls[0].function, {
      name: 'get_weather',
      arguments: call.function.arguments,
    });
  },

  async run_tools() {
    // The helper calls the function itself, sends the result back and ends with the model's words.
    const calls = [];
    const runnable = {
      type: 'function',
      function: {
        ...tool.function,
        parse: JSON.parse,
        function: (found) => {
          calls.push(found);
          return '21 degrees and a clear sky';
        },
      },
    };
    const named = { type: 'function', function: { name: 'get_weather' } };
    const runner = client.chat.completions.runTools({ ...weather, tools: [runnable], tool_choice: named });
    await runner.done();
    assert.equal(calls.length, 1);
    checkArguments(JSON.stringify(calls[0]));
    assert.ok(runner.messages.some((message) => message.role === 'tool'));
  },

  async structured_output() {
    const format = { type: 'json_schema', json_schema: { name: 'weather', strict: true, schema: parameters } };
    const { model, temperature, messages } = weather;
    const asked = { model, temperature, messages, max_tokens: 200, response_format: format };
    const answer = await client.chat.completions.parse(asked);
    checkArguments(answer.choices[0].message.content);
    assert.deepEqual(answer.choices[0].message.parsed, JSON.parse(answer.choices[0].message.content));
  },

  async errors() {
    await assert.rejects(client.chat.completions.create({ ...france, temperature: 3 }), (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError);
      assert.deepEqual([error.status, error.param, error.code], [400, 'temperature', null]);
      assert.equal(error.type, 'invalid_request_error');
      assert.match(error.message, /temperature/);
      return true;
    });
    await assert.rejects(client.chat.completions.create({ ...france, model: 'gpt-x', stream: true }), (error) => {
      assert.ok(error instanceof OpenAI.NotFoundError);
      assert.deepEqual([error.status, error.param, error.code], [404, 'model', 'model_not_found']);
      return true;
    });
    const stranger = new OpenAI({ baseURL, apiKey: 'wrong', maxRetries: 0 });
    await assert.rejects(stranger.models.list(), (error) => {
      assert.ok(error instanceof OpenAI.AuthenticationError);
      assert.equal(error.code, 'invalid_api_key');
      return true;
    });
  },
};

await cases[process.argv[2]]();
